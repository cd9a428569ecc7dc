"""What the paper shows, from run directories alone: tables, figures, and one page that holds them all.

records      the runs below a directory: finished, unfinished, damaged
experiments  which of them are seeds of one experiment, and what was varied between experiments
table        a table as a value: cells that know their spread, number of runs and rank
render       the same table as text, Markdown, LaTeX and CSV
tables       the tables of the paper
drawing      how every figure looks, and its bytes
figures      the figures of the paper; ``insides`` those of memory and training
page         the page
write        the files
"""

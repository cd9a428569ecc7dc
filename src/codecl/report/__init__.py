"""What the paper shows, from run directories alone: tables, figures, and one page that holds them all.

records      the runs below a directory: finished, unfinished, damaged
experiments  which of them are seeds of one experiment, and what was varied between experiments
table        a table as a value: cells that know their spread, number of runs and rank
render       the same table as text, Markdown, LaTeX and CSV
tables       the tables of the paper
published    the numbers of the paper, and which runs they may stand beside
drawing      how every figure looks, and its bytes
figures      the figures of the paper; ``run_figures`` those of memory and training
remarks      what is to be said beside them: repeats, seeds that do not match, logs that are missing
page         the page
write        the files
"""

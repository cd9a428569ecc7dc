"""What runs show, from their directories alone: tables, figures, and one page that holds them all.

records      the runs below a directory: finished, unfinished, damaged
experiments  which of them are seeds of one experiment, and what was varied between experiments
transfer     which experiments can be compared with a baseline, seed by seed
interval     how far a mean over few seeds can be trusted; ``headline`` who is ahead, and if it is more than noise
table        a table as a value: cells that know their spread, number of runs and rank
tables       the tables of a report; ``footprint`` has the formulas of memory
render       the same table as text, Markdown, LaTeX and CSV
published    the numbers of the paper, and which runs they may stand beside
drawing      the look of every figure, and its bytes
figures      the figures of a report; ``run_figures`` those of single runs
page         the page and what it says of repeats and missing logs; ``page.html`` is its template
write        the files; ``names`` has their names
comparison   the tables of ``codecl compare`` and ``codecl sweep``
inspection   ``codecl inspect``: one run, layer by layer
reproduction REPRODUCTION.md
"""

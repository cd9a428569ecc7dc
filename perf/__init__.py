"""Speed and memory, measured side by side in one run and given as ratios: the machine may be noisy, a ratio is less so.

make bench                        all of it
make bench ARGS="step --repeat 40"
"""

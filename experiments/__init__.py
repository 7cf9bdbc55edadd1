"""Experiments of several trainings: a plan of runs, a runner that resumes, and an analysis of the
committed rows.

plan.py         reads a plan (plans/*.yaml): which models are trained on what, with which seeds and
                probes
materials.py    the text, the tokenizer and the probes that all runs of a plan share
train.py        trains and measures one run
run.py          python -m experiments.run PLAN: all runs, several at a time
workers.py      where the runs are trained: in processes of this machine, or on a Ray cluster
collect.py      python -m experiments.collect: the rows of finished runs, in one store
effects.py      the preregistered numbers of one run, from its rows
inference.py    tests over seeds
analyze.py      python -m experiments.analyze ROWS: the table of tests, figures and the page of
                results
public_rows.py  python -m experiments.public_rows: what is missing of the papers' models
compare.py      python -m experiments.compare ROWS...: the arms of several experiments side by side
"""

"""Tables, pictures and the dashboard, made from what is kept under benchmarks/results/.

`python -m benchmarks.figures` writes them (`make figures`); `--check` says which are stale.
"""

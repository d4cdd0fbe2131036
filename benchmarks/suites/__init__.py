"""One file a suite, found by its name: SUITE says what is measured, and how.

One that measures no cells has a function `run` instead, which returns the exit status.
"""

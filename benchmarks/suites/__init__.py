"""One file a suite, found by its name: SUITE says what is measured, and how."""

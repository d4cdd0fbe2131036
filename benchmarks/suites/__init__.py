"""One file a suite, found by its name: CELLS to measure, ROUNDS per cell and its DEVICE."""

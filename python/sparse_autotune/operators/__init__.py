"""The operators, what compilers and tracers know of them, and their derivatives."""

"""Which of the operators are called by what is to pass them by."""

from sparse_autotune import functional
from sparse_autotune.operators import forms

# Those of products, with the module that calls each.
OPERATORS = {"bsr_matmul": forms, "bsr_matmul_out": functional, "bsr_sampled_matmul": forms}


class CountedCalls:
    """The operators that are called, by name; the calls are passed on."""

    def __init__(self, monkeypatch, operators=OPERATORS):
        self.asked = []
        for name, module in operators.items():
            monkeypatch.setattr(module, name, self._noting(name, getattr(module, name)))

    def _noting(self, name, operator):
        def noting(*arguments, **keywords):
            self.asked.append(name)
            return operator(*arguments, **keywords)

        return noting

    def during(self, call):
        """How many, and the result."""
        before = len(self.asked)
        result = call()
        return len(self.asked) - before, result

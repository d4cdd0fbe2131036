"""Block masks of attention: their forms, generators, and other libraries' forms of them."""

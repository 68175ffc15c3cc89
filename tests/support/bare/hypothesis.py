"""In the way of hypothesis, for programs that tests start.

kio registers strategies wherever it can import hypothesis, which no user of korvet has: that would take
longer than all the rest of a start.
"""

raise ImportError("hypothesis is for the tests themselves")

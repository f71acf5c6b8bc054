"""For tests of Penstock and of what is built on it: a clock that is told the time, conformance suites."""

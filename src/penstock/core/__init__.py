"""Pure decisions: no clock, no I/O, no await.  Everything here is told the time."""

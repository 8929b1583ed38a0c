"""How long a test waits for an expected event: a busy machine is not a failure."""

# Waiting costs nothing where it does happen. Less than pytest's own limit for a test.
PATIENCE_S = 40.0
# What comes later than this came because something else ended, and not because it should.
FAR_TOO_LATE_S = 60.0
# Deadlines of a command that must have begun before it is stopped: a machine that was too busy for
# one of them gets the next.
DEADLINES_S = (0.5, 5.0, 20.0)

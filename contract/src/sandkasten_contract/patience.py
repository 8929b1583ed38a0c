"""How long a test waits for an expected event: a busy machine is not a failure."""

# Waiting costs nothing where it does happen. Less than pytest's own limit for a test.
PATIENCE_S = 40.0
# What comes later than this came because something else ended, and not because it should.
FAR_TOO_LATE_S = 60.0

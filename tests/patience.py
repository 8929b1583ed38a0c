"""How long a test waits for an expected event: a busy machine is not a failure."""

from sandkasten_contract.patience import FAR_TOO_LATE_S, PATIENCE_S

__all__ = ["DEADLINES_S", "FAR_TOO_LATE_S", "PATIENCE_S"]

# Deadlines of a command that must have begun before it is stopped: a machine that was too busy for
# one of them gets the next.
DEADLINES_S = (0.5, 5.0, 20.0)

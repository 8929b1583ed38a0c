"""Tests of what every backend must do; `python -m sandkasten_contract NAME` runs them on one."""

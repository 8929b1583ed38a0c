"""What every backend must do, as tests; `python -m sandkasten_contract NAME` runs them on one."""

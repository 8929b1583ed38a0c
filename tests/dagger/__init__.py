"""A real Dagger engine on this machine, which belongs to one test run.

`scripts/dagger_build.sh` builds its programs. `EngineProcess` starts it as a process,
`engine_container` in a container. `python -m tests.dagger` starts one for a person.
"""

from __future__ import annotations

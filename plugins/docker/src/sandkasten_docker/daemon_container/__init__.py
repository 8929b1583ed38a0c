"""The daemon as a container: `sandkasten up` and `sandkasten down`.

`install_plan` decides what to create, `docker_commands` prints it, `up_checks` checks the Docker
Engine first, `installation` creates it, `container_removal` removes it.
"""

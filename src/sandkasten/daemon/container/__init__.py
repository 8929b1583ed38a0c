"""The daemon as a container: `sandkasten up` and `sandkasten down`.

`plan` decides what there is to be, `commandline` writes it as a person would type it, `checks`
looks before anything is made, `standing` makes it, `removal` takes it away.
"""

"""The protocol's error codes inside the fake runner. Never leaves this room: the server turns
each into an ERROR frame, or a program into a line on stderr."""

from __future__ import annotations


class Refusal(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# What a program prints for a refusal of the file system, as libc words it.
STRERROR = {
    "not_found": "No such file or directory",
    "exists": "File exists",
    "not_directory": "Not a directory",
    "is_directory": "Is a directory",
    "not_empty": "Directory not empty",
    "permission": "Permission denied",
    "no_space": "No space left on device",
    "loop": "Too many levels of symbolic links",
    "name_too_long": "File name too long",
}


def strerror(refusal: Refusal) -> str:
    return STRERROR.get(refusal.code, refusal.message)

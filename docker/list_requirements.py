"""Prints the requirements of pyproject.toml and of some of its extras, one per line."""

import sys
import tomllib


def main(path: str, *extras: str) -> int:
    """Returns the exit code: 0 done, 2 an extra is unknown."""
    with open(path, "rb") as file:
        project = tomllib.load(file)["project"]
    known = project["optional-dependencies"]
    if unknown := [extra for extra in extras if extra not in known]:
        print(f"no extra {', '.join(unknown)}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    print(*project["dependencies"], *(line for extra in extras for line in known[extra]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

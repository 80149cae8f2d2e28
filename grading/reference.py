"""Where the reference is: graders' copies of the kit have it, the students' handout does not."""

from pathlib import Path

REFERENCE = "staff.reference"
FILE = Path(__file__).resolve().parents[1] / "staff" / "reference.py"


def has_reference() -> bool:
    """Whether this copy of the kit has the reference."""
    return FILE.is_file()

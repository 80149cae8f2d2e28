"""A run's folder: created, claimed for this run alone, and cleared of an earlier one."""

from common.errors import UserError
from common.files import claim, disk_full


def hold(folder, rank):
    """Create a run's folder, if it is not there, and claim it; raises UserError where it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return claim(folder, rank)
    except OSError as error:
        if disk_full(error, folder.parent):
            raise
        raise not_writable(folder, error) from None


def clear(folder, world):
    """Remove what an earlier run left here, so that no rank's file is mistaken for this one's.

    Every rank removes its own; rank 0 also those of ranks that this run does not have.
    """
    try:
        (folder / f"trace.rank{world.rank}.json").unlink(missing_ok=True)
        if world.rank == 0:
            for old in folder.glob("*.rank*.json*"):
                rank = old.name.split(".")[1].removeprefix("rank")
                if rank.isdigit() and int(rank) >= world.size:
                    old.unlink()
            for name in ("run.json", "eval_results.txt"):
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise not_writable(folder, error) from None


def not_writable(folder, error):
    """The UserError of a folder that cannot be written to."""
    return UserError(f"--output_dir {folder}: {error.strerror}; choose a writable folder")

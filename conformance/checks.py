"""What the scripts of the clients share: a list of checks, and the run that prints a line per check and a count."""
import sys
import traceback

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def run():
    """Runs every check, and returns the exit code."""
    failed = 0
    for function in CHECKS:
        name = function.__name__.replace("_", " ")
        try:
            function()
            print("ok    ", name, flush=True)
        except Exception:
            failed += 1
            print("FAILED", name, flush=True)
            traceback.print_exc()
            sys.stderr.flush()
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0

"""`python -m formerlab <verb>`: every stage of the pipeline, and what one wants to ask it, by hand."""

import argparse
import sys
import traceback

from formerlab.commands import check, huggingface, measures, plan, results, stages, timings, tools
from formerlab.errors import EXIT_FAILED, EXIT_STOPPED_EARLY, EXIT_USER_ERROR, StoppedEarly, UserError


def main(words: list[str] | None = None) -> int:
    """Run one verb and return the exit status: 0 done, 1 failed, 2 a mistake to mend, 75 stopped early, run again."""
    parser = argparse.ArgumentParser(prog="formerlab", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="<verb>")
    for module in (plan, stages, timings, measures, results, check, tools, huggingface):
        module.add_parsers(verbs)
    arguments = parser.parse_args(words)
    try:
        arguments.function(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except StoppedEarly as reason:
        print(reason, file=sys.stderr)
        return EXIT_STOPPED_EARLY
    except KeyboardInterrupt:
        print("interrupted; what was finished is safe, run the same command again to continue", file=sys.stderr)
        return EXIT_STOPPED_EARLY
    except BrokenPipeError:
        return EXIT_FAILED
    except Exception:
        traceback.print_exc()
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())

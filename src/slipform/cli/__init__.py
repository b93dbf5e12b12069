"""Run the command line."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; an error is printed in one paragraph, without a traceback."""
    if sys.argv[1:] == ["--version"]:  # without typer, which takes ten times as long to load as this to run
        from slipform.build_info import version_line

        sys.stdout.write(f"{version_line()}\n")
        return
    command = sys.argv[1] if len(sys.argv) > 1 else None
    if command == "serve":  # before the imports below, which take longer than a supervisor may wait with its signal
        from slipform.reload_signal import defer_reload

        defer_reload()
    from typer.main import get_command

    from slipform.cli.help_pages import lay_out_help
    from slipform.cli.missing_module import missing_module
    from slipform.cli.program import app
    from slipform.cli.terminal import Exit, exit_for, print_failure, print_message, silence_closed_pipe
    from slipform.errors import SlipformError

    try:
        program = get_command(app(command))
        lay_out_help(program)
        program()
    except SlipformError as error:
        print_failure(error)
        raise SystemExit(exit_for(error)) from None
    except ModuleNotFoundError as error:
        failure = missing_module(error)
        print_failure(failure)
        raise SystemExit(exit_for(failure)) from None
    except BrokenPipeError:
        silence_closed_pipe()
        raise SystemExit(Exit.CLOSED_PIPE) from None
    except OSError as error:
        print_message(
            f"slipform: {error.strerror or error}{f', at {error.filename}' if error.filename else ''}.", fg="red"
        )
        raise SystemExit(Exit.OTHER) from None
    except KeyboardInterrupt:
        raise SystemExit(Exit.STOPPED) from None

"""`penstock up`: run the stack until SIGINT, SIGTERM or SIGHUP; a second one but SIGHUP kills it at once."""

from __future__ import annotations

from shared.process.quiet_end import discard_stream, end_quietly, interrupts_end_at_once, run_loop

with interrupts_end_at_once():
    from shared.import_without import import_without

    import_without("rich", "structlog")  # it is for coloured tracebacks: a sixth of the imports here

    import asyncio
    import os
    import signal
    import sys
    from collections.abc import Sequence

    from services.launcher.detached import leave_streams, run_detached
    from services.launcher.options import StackOptions, parse_options
    from services.launcher.plan import fork_server_environ, plan_instances, preloaded
    from services.launcher.processes.early_server import EarlyServer, fork_early
    from services.launcher.processes.forker import forking_works, server_environ
    from services.launcher.processes.log_lines import LineWriter
    from services.launcher.stack import Plan, Stack
    from services.launcher.stack_log import StackLog
    from services.launcher.start_check import check_before_start
    from shared.errors import InvalidRequest, PenstockError
    from shared.telemetry import logging

EXIT_FAILED = 1
EXIT_CONFIGURATION = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str], plan: Plan = plan_instances) -> int:
    """The exit code: 0 stopped as asked, or ready with `-d`, 1 failed, 2 a wrong option, configuration or
    model."""
    on_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    options = parse_options(argv, on_terminal=on_terminal)
    if options.detach:
        return run_detached(options.state_dir, lambda: run_stack(options, plan))
    return run_stack(options, plan)


def run_stack(options: StackOptions, plan: Plan) -> int:
    # Now, while there is one thread; for other plans there is no telling what services import.
    early = _early_server(options) if plan is plan_instances and not options.problems else None
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    logging.configure("warning", "launcher", "launcher")
    terminal = LineWriter(
        sys.stderr.buffer,
        colour=colour,
        as_json=options.log_format == "json",
        text_roles=options.text_roles,
    )
    log = StackLog(terminal)
    try:
        if options.problems:
            for problem in options.problems:
                log.write("penstock", problem.encode(), "error")
            return EXIT_CONFIGURATION
        with interrupts_end_at_once():  # a fetch could not be ended, only left
            check_before_start(options, lambda sentence: log.write("penstock", sentence.encode()))
        run_loop(_run(options, log, plan, early))
    except KeyboardInterrupt:  # nothing runs yet
        return EXIT_INTERRUPTED
    except PenstockError as error:
        log.write("penstock", str(error).encode(), "error")
        return EXIT_CONFIGURATION if isinstance(error, InvalidRequest) else EXIT_FAILED
    finally:
        if early is not None:
            early.end_if_waiting()
        log.leave_terminal()
    return 0


def _early_server(options: StackOptions) -> EarlyServer | None:
    if not forking_works():
        return None
    return fork_early(preloaded(options), server_environ(fork_server_environ()))


async def _run(options: StackOptions, log: StackLog, plan: Plan, early: EarlyServer | None) -> None:
    def announce(line: str) -> None:
        _tell_ready(line, f"console: {stack.console_url}    chat: `penstock chat`", options, log)

    stack = Stack(options, log, announce=announce, plan=plan, early=early)

    def on_signal(signum: signal.Signals) -> None:
        if signum == signal.SIGHUP:  # the kernel and a shell may both say that a terminal has closed
            if not stack.stop.is_set():
                log.write("penstock", b"the terminal has closed: stopping")
        elif stack.stop.is_set():
            log.write("penstock", b"%s again: killing everything" % signum.name.encode())
            stack.kill.set()
        else:
            log.write("penstock", b"%s: stopping" % signum.name.encode())
        stack.stop.set()

    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, on_signal, signum)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else `nohup` keeps the stack without a terminal
        loop.add_signal_handler(signal.SIGHUP, on_signal, signal.SIGHUP)
    await stack.run()


def _tell_ready(line: str, places: str, options: StackOptions, log: StackLog) -> None:
    """Print the line that programs wait for, and for people what they may do next."""
    if options.detach:
        log.leave_terminal()  # first: these lines are the last that are said there
        _announce(f"{line}\n{places}")
        leave_streams()
    elif sys.stdout.isatty():
        _announce(f"{line}\n{places}    stop: Ctrl-C")
    else:
        _announce(line)


def _announce(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError:  # whoever wanted to know has left, or the terminal has closed, which a signal tells
        discard_stream(sys.stdout)


if __name__ == "__main__":
    sys.exit(end_quietly(lambda: main(sys.argv[1:])))

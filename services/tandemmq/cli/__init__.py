def main() -> None:
    """Where `tandemmq` and `mqadmin` begin: Ctrl-C ends them without a traceback from their first line on."""
    # `signal` itself imports for as long as it takes to press two keys; the module that it dresses up is built in.
    import _signal  # type: ignore[import-not-found]

    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

    from tandemmq.cli.__main__ import main as run

    run()

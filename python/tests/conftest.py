"""With CI set, a skipped test is a failed run: what the test lacks must be installed there."""

import os

import pytest


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if skipped and os.environ.get("CI") and exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"\n{len(skipped)} skipped: with CI set, none may be")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

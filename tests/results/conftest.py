import pytest

from tests.trained import Trained, train_table


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Not to be changed; copy it first."""
    return train_table(tmp_path_factory.mktemp("outputs"))


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as wide as they are in a pipe: pytest-xdist hands its own terminal's width on to its workers."""
    monkeypatch.delenv("COLUMNS", raising=False)

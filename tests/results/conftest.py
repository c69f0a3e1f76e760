import pytest

from tests.trained import Trained, train_table


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Not to be changed; copy it first."""
    return train_table(tmp_path_factory.mktemp("outputs"))

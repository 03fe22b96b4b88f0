import pytest


@pytest.fixture(scope="session")
def validator():
    """``kubernetes_validate``, imported late: it takes a second of each process that collects."""
    import kubernetes_validate

    return kubernetes_validate

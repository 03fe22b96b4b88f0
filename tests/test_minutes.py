"""``make test`` stays a matter of minutes."""

MOST = 3500
"""Items that it may have; what there is more of has the marker ``thorough``."""


def test_make_test_has_few_items(request):
    left_out = ("thorough", "gpu")
    taken = [
        item
        for item in request.session.items
        if not any(item.get_closest_marker(name) for name in left_out)
    ]
    assert len(taken) <= MOST

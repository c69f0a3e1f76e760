"""An ordering is a layer and a cut; what stands in stem, branch, projection and tail follows."""

import pytest

from deepnets.models.layers import Layers
from deepnets.models.ordering import Ordering


def words(names: tuple[str, ...]) -> str:
    return " ".join(names)


@pytest.mark.parametrize(
    ("layer", "after", "stem", "before", "branch", "projection"),
    [
        ("conv bn relu", "relu", "conv bn relu", "", "conv bn relu conv bn", "conv bn"),
        ("conv bn relu", "bn relu", "conv bn relu", "", "conv bn relu conv", "conv"),
        ("conv bn relu", "", "conv bn relu", "", "conv bn relu conv bn relu", "conv bn"),
        ("relu conv bn", "", "conv bn", "relu", "relu conv bn relu conv bn", "conv bn"),
        ("bn relu conv", "", "conv", "bn relu", "bn relu conv bn relu conv", "conv"),
    ],
)
def test_the_five_orderings_of_figure_4(
    layer: str, after: str, stem: str, before: str, branch: str, projection: str
) -> None:
    ordering = Ordering(tuple(layer.split()), tuple(after.split()))
    assert words(ordering.stem) == stem
    assert words(ordering.before) == before
    assert words(ordering.branch(2)) == branch
    assert words(ordering.projection) == projection


@pytest.mark.parametrize("after", [("bn",), ("conv", "bn", "relu"), ("relu", "relu"), ("relu", "bn"), ("tanh",)])
def test_after_must_end_the_layer_behind_its_conv(after: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"choose one of \['bn', 'relu'\], \['relu'\], \[\]"):
        Ordering(("conv", "bn", "relu"), after)


@pytest.mark.parametrize("layer", [(), ("bn", "relu"), ("conv", "conv")])
def test_a_layer_holds_one_conv(layer: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="it must hold exactly one conv or linear"):
        Ordering(layer, ())


def test_an_unknown_layer_name_is_refused() -> None:
    with pytest.raises(
        ValueError, match="unknown layer 'gelu'; choose from conv, linear, bn, relu, crelu, tanh, shift, dropout"
    ):
        Layers(conv_bias=False, batchnorm_images=None).sequence(["gelu"], 4)

"""An option is trained with its own values or refused."""

import re

import pytest

from deepnets.config.compose import compose
from deepnets.config.overruled import check_options
from deepnets.errors import UserError


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["sweep=he2016_table1", "model=resnet56"], "model.depth (56 of the option, 110 here). Add model.depth=56,"),
        (["sweep=he2016_table1", "scale=mini", "model=resnet56"], "model.depth (56 of the option, 20 here)"),
        (["sweep=srivastava2025_gates", "model=resnet56"], "model.depth (56 of the option, 110 here)"),
        (
            ["sweep=srivastava2015_table1", "schedule=constant"],
            "schedule.milestones ([] of the option, [100, 200] here)",
        ),
        (["sweep=srivastava2015_table1", "optimizer=adam"], "optimizer.lr (0.001 of the option, 0.01 here)"),
        (["sweep=he2015_table6", "schedule=cosine"], "(0 here). Add ~schedule.warmup_iterations,"),
        (["protocol=huang2016", "schedule=constant"], "schedule.milestones ([] of the option, [250, 375] here)"),
    ],
)
def test_an_option_that_a_table_would_overrule_is_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        check_options(compose(overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["sweep=he2016_table1", "model=resnet56", "model.depth=56"],
        ["sweep=he2016_table1", "scale=mini", "model=resnet20"],
        ["sweep=he2016_table1", "model=preact110", "schedule=cosine", "dataset=cifar100"],
        ["sweep=srivastava2025_gates", "scale=mini", "model=highway110"],
        ["sweep=he2015_table6", "schedule=cosine", "~schedule.warmup_iterations"],
        ["protocol=huang2016", "schedule=constant", "schedule.milestones=[]"],
        ["protocol=he2016", "schedule=cosine", "model=preact110", "dataset=cifar100", "optimizer=nesterov"],
        ["sweep=srivastava2015_table1", "model=highway_mnist_w32", "dataset=image_folder", "dataset.root=/data/cats"],
    ],
)
def test_an_option_is_free_where_the_table_leaves_it_what_it_is(overrides: list[str]) -> None:
    check_options(compose(overrides))

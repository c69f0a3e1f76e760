"""A run in a line on the console."""

from typing import Any


def describe_result(result: dict[str, Any]) -> str:
    """A run's end in a line."""
    name, value = "test error", result["test_error"]
    if value is None:  # it diverged
        name, value = "last test error", result["last_test_error"]
    error = "no epoch completed" if value is None else f"{name} {value:.2f}%"
    if result["selected_epoch"] and result["selection"] == "best_validation":
        error += f" at epoch {result['selected_epoch']} of lowest validation error"
    pace = f"{result['images_per_second']:,.0f} images/s" if result["images_per_second"] else "no epoch timed"
    epochs = f"{result['epochs']} epoch{'s' * (result['epochs'] != 1)}"
    return f"{result['status']}: {error} after {epochs} in {duration(result['seconds'])} ({pace})"


def duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

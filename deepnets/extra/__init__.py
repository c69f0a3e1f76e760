"""Features beside the story: each is kept where a user meets it, and only commands import it."""

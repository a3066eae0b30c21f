"""Why tokens were missed: the cause of each, and its explanation in words."""

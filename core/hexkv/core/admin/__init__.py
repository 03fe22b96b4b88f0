"""Why a prompt is not found: the explanations of missing chunks."""

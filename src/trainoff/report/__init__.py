"""Output for people and other tools: the HTML report, the live view, exports, progress and terminal tables."""

"""What several engines share, and what belongs to no single training system."""

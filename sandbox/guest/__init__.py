"""What runs inside a box. Nothing here imports anything of ours outside this package, or any package but stdlib."""

"""Two custom ops, made with torch.library the way a package outside this project
would make them."""

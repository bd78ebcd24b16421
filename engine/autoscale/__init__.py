"""What a bucket knows of its topics, and how it is kept up and evaluated (PIP-483)."""

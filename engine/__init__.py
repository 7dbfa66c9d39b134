"""What is computed: rows of state, layouts, sampling. Pure MLX: knows neither Trio nor actors."""

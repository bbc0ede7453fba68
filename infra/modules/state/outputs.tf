output "table" {
  description = "Name of the table."
  value       = aws_dynamodb_table.this.name
}

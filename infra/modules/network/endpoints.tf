locals {
  # Free in every mode: weights, shards, segments and records never pass a NAT gateway.
  gateways = local.create ? toset(["s3", "dynamodb"]) : toset([])

  interfaces = var.mode != "endpoints" ? toset([]) : setunion(
    var.endpoint_services,
    var.session_manager_endpoints ? ["ec2messages", "ssm", "ssmmessages"] : [],
    var.secrets_endpoint ? ["secretsmanager"] : [],
  )
}

resource "aws_vpc_endpoint" "gateway" {
  for_each = local.gateways

  vpc_id            = aws_vpc.this[0].id
  service_name      = "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = concat(aws_route_table.public[*].id, [for table in aws_route_table.private : table.id])
  tags              = merge(local.tags, { Name = "${var.name}-${each.key}" })
}

resource "aws_vpc_endpoint" "interface" {
  for_each = local.interfaces

  vpc_id              = aws_vpc.this[0].id
  service_name        = "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = local.private_subnet_ids
  security_group_ids  = [aws_security_group.endpoints[0].id]
  tags                = merge(local.tags, { Name = "${var.name}-${each.key}" })
}

resource "aws_security_group" "endpoints" {
  count = var.mode == "endpoints" ? 1 : 0

  name        = "${var.name}-endpoints"
  description = "Interface endpoints: HTTPS from this VPC."
  vpc_id      = aws_vpc.this[0].id
  tags        = merge(local.tags, { Name = "${var.name}-endpoints" })
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  count = var.mode == "endpoints" ? 1 : 0

  security_group_id = aws_security_group.endpoints[0].id
  description       = "HTTPS from this VPC."
  cidr_ipv4         = var.cidr
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  tags              = local.tags
}

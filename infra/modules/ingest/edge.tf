locals {
  ingest_origin = "ingest"
  api_origin    = "api"

  # CloudFront's managed policies, by the ids that AWS documents: nothing is cached, and everything of the
  # viewer's request is passed on but Host, by which API Gateway knows its own APIs.
  caching_disabled              = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"
  all_viewer_except_host_header = "b689b0a8-53d0-40ab-baf2-68738e2966ac"
  all_methods                   = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]
  paths_of_ingest               = ["/v1/files*", "/v1/uploads*"]
  errors_that_cloudfront_caches = [400, 403, 404, 405, 414, 416, 500, 501, 502, 503, 504]
  origin_keepalive_seconds      = 60
  api_gateway_timeout_seconds   = 60
}

resource "aws_cloudfront_vpc_origin" "this" {
  tags = local.tags

  vpc_origin_endpoint_config {
    name                   = local.name
    arn                    = aws_lb.this.arn
    http_port              = 80
    https_port             = 443
    origin_protocol_policy = local.tls ? "https-only" : "http-only"

    origin_ssl_protocols {
      items    = ["TLSv1.2"]
      quantity = 1
    }
  }

  # AWS takes up to a quarter of an hour.
  timeouts {
    create = "30m"
    update = "30m"
    delete = "30m"
  }
}

resource "aws_cloudfront_distribution" "this" {
  #checkov:skip=CKV2_AWS_47:A web ACL is the variable web_acl_arn; the rules against Log4j have nothing to guard, for nothing here is Java.
  #checkov:skip=CKV_AWS_86:The tasks and API Gateway log each request; CloudFront's logs would hold the same again.
  #checkov:skip=CKV_AWS_305:An API has no root object.
  #checkov:skip=CKV_AWS_310:The tasks are the failover: two zones behind one load balancer.
  #checkov:skip=CKV_AWS_374:Who may call is decided by keys, not by countries.
  #checkov:skip=CKV2_AWS_32:Security headers are for browsers; the answers are OpenAI's, header by header.
  comment         = "Nightshift ${var.name}: the whole API, with uploads of any size."
  enabled         = true
  is_ipv6_enabled = true
  http_version    = "http2and3"
  price_class     = var.price_class
  aliases         = var.aliases
  web_acl_id      = var.web_acl_arn
  tags            = local.tags

  origin {
    origin_id           = local.ingest_origin
    domain_name         = local.tls ? var.origin_domain_name : aws_lb.this.dns_name
    connection_attempts = 3
    connection_timeout  = 10

    vpc_origin_config {
      vpc_origin_id            = aws_cloudfront_vpc_origin.this.id
      origin_read_timeout      = var.response_timeout_seconds
      origin_keepalive_timeout = local.origin_keepalive_seconds
    }
  }

  origin {
    origin_id   = local.api_origin
    domain_name = var.api_domain_name
    origin_path = var.api_origin_path

    custom_origin_config {
      http_port                = 80
      https_port               = 443
      origin_protocol_policy   = "https-only"
      origin_ssl_protocols     = ["TLSv1.2"]
      origin_read_timeout      = local.api_gateway_timeout_seconds
      origin_keepalive_timeout = local.origin_keepalive_seconds
    }
  }

  default_cache_behavior {
    target_origin_id         = local.api_origin
    viewer_protocol_policy   = "https-only"
    allowed_methods          = local.all_methods
    cached_methods           = ["GET", "HEAD"]
    cache_policy_id          = local.caching_disabled
    origin_request_policy_id = local.all_viewer_except_host_header
    compress                 = false
  }

  # CloudFront chooses by path alone, not by method: all of files and uploads goes to the tasks, which run the whole router.
  dynamic "ordered_cache_behavior" {
    for_each = local.paths_of_ingest
    content {
      path_pattern             = ordered_cache_behavior.value
      target_origin_id         = local.ingest_origin
      viewer_protocol_policy   = "https-only"
      allowed_methods          = local.all_methods
      cached_methods           = ["GET", "HEAD"]
      cache_policy_id          = local.caching_disabled
      origin_request_policy_id = local.all_viewer_except_host_header
      compress                 = false
    }
  }

  # Errors are cached for ten seconds unless this says otherwise: a batch that was just made would stay "not found".
  dynamic "custom_error_response" {
    for_each = local.errors_that_cloudfront_caches
    content {
      error_code            = custom_error_response.value
      error_caching_min_ttl = 0
    }
  }

  restrictions {
    geo_restriction {
      restriction_type = "none"
    }
  }

  viewer_certificate {
    cloudfront_default_certificate = var.viewer_certificate_arn == null
    acm_certificate_arn            = var.viewer_certificate_arn
    # CloudFront's own name fixes its policy, and reports TLSv1.
    minimum_protocol_version = var.viewer_certificate_arn == null ? "TLSv1" : "TLSv1.2_2021"
    ssl_support_method       = var.viewer_certificate_arn == null ? null : "sni-only"
  }
}

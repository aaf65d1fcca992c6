"""The bucket of the archives outlives every stack: private, encrypted, versioned, TLS only, and never deleted here."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from decamp.aws.tags import CONTACTED, make_tags
from decamp.store.location import StoreLocation
from infra.aws.permissions import make_bucket_policy
from infra.aws.settings import AwsSettings, BucketSettings
from infra.config import StackConfig
from infra.store import Store


class AwsStore(Store):
    """A bucket on S3 as it must be kept, or one that was there and is left as it is.

    Args:
        config: the stack's settings, the account's answers included.

    Attributes:
        resources: what must stay in the stack until every guard has agreed.
        provider: the AWS provider, for everything else of the stack.
    """

    def __init__(self, config: StackConfig) -> None:
        assert config.aws is not None
        self.provider = declare_provider(config.aws)
        pulumi.ComponentResource.__init__(
            self, "decamp:aws:Store", "store", None, pulumi.ResourceOptions(providers=[self.provider])
        )
        self.resources: list[pulumi.Resource] = [self]
        settings, name = config.aws.bucket, StoreLocation.parse(config.store.url).bucket
        # Retained, each of them: a bucket without its policy or its versions would not be the one that was promised.
        self._kept = pulumi.ResourceOptions(parent=self, retain_on_delete=True)
        if not settings.existing:
            place: pulumi.Input[str] = name
            if config.aws.facts.declare_bucket:
                bucket = aws.s3.Bucket(
                    "bucket",
                    bucket=name,
                    object_lock_enabled=True if settings.object_lock_days else None,
                    # A bucket has no expiry: it is what is left.
                    tags=make_tags(pulumi.get_stack(), config.aws.owner, "never"),
                    opts=self._kept,
                )
                self.resources.append(bucket)
                place = bucket.id
            self._keep(place, name, settings)
        self.register_outputs(self.describe(config))

    def _keep(self, place: pulumi.Input[str], name: str, settings: BucketSettings) -> None:
        access = aws.s3.BucketPublicAccessBlock(
            "bucket-public-access",
            bucket=place,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=self._kept,
        )
        versioning = aws.s3.BucketVersioning(
            "bucket-versioning",
            bucket=place,
            versioning_configuration=aws.s3.BucketVersioningVersioningConfigurationArgs(status="Enabled"),
            opts=self._kept,
        )
        owner = aws.s3.BucketOwnershipControls(
            "bucket-ownership",
            bucket=place,
            rule=aws.s3.BucketOwnershipControlsRuleArgs(object_ownership="BucketOwnerEnforced"),
            opts=self._kept,
        )
        key = settings.kms_key_arn
        encryption = aws.s3.BucketServerSideEncryptionConfiguration(
            "bucket-encryption",
            bucket=place,
            rules=[
                aws.s3.BucketServerSideEncryptionConfigurationRuleArgs(
                    apply_server_side_encryption_by_default=(
                        aws.s3.BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs(
                            sse_algorithm="aws:kms" if key else "AES256", kms_master_key_id=key or None
                        )
                    ),
                    bucket_key_enabled=True if key else None,
                )
            ],
            opts=self._kept,
        )
        # The policy waits for the block: S3 refuses the two at once now and then (OperationAborted).
        policy = aws.s3.BucketPolicy(
            "bucket-policy",
            bucket=place,
            policy=make_bucket_policy(name),
            opts=pulumi.ResourceOptions.merge(self._kept, pulumi.ResourceOptions(depends_on=[access])),
        )
        lifecycle = aws.s3.BucketLifecycleConfiguration(
            "bucket-lifecycle",
            bucket=place,
            rules=make_lifecycle_rules(settings),
            opts=pulumi.ResourceOptions.merge(self._kept, pulumi.ResourceOptions(depends_on=[versioning])),
        )
        self.resources += [access, versioning, owner, encryption, policy, lifecycle]
        if settings.object_lock_days:
            lock = aws.s3.BucketObjectLockConfiguration(
                "bucket-object-lock",
                bucket=place,
                rule=aws.s3.BucketObjectLockConfigurationRuleArgs(
                    default_retention=aws.s3.BucketObjectLockConfigurationRuleDefaultRetentionArgs(
                        mode=settings.object_lock_mode, days=settings.object_lock_days
                    )
                ),
                opts=pulumi.ResourceOptions.merge(self._kept, pulumi.ResourceOptions(depends_on=[versioning])),
            )
            self.resources.append(lock)


def declare_provider(settings: AwsSettings) -> aws.Provider:
    """Declares the provider: region and profile of the settings, and hands off the tag that the first contact sets."""
    return aws.Provider(
        "aws",
        region=settings.region,
        profile=settings.profile or None,
        ignore_tags=aws.ProviderIgnoreTagsArgs(keys=[CONTACTED]),
    )


def make_lifecycle_rules(settings: BucketSettings) -> list[aws.s3.BucketLifecycleConfigurationRuleArgs]:
    """Returns the rules: unfinished uploads and old versions go, and bags move to a cheaper class if one is asked for.

    An object that is small, as receipts and manifests are, does not move.
    """
    rules = [
        aws.s3.BucketLifecycleConfigurationRuleArgs(
            id="unfinished-uploads",
            status="Enabled",
            filter=aws.s3.BucketLifecycleConfigurationRuleFilterArgs(prefix=""),
            abort_incomplete_multipart_upload=(
                aws.s3.BucketLifecycleConfigurationRuleAbortIncompleteMultipartUploadArgs(
                    days_after_initiation=settings.abort_uploads_days
                )
            ),
        ),
        aws.s3.BucketLifecycleConfigurationRuleArgs(
            id="old-versions",
            status="Enabled",
            filter=aws.s3.BucketLifecycleConfigurationRuleFilterArgs(prefix=""),
            noncurrent_version_expiration=aws.s3.BucketLifecycleConfigurationRuleNoncurrentVersionExpirationArgs(
                noncurrent_days=settings.keep_old_versions_days
            ),
        ),
    ]
    if settings.storage_class:
        # Objects below 128 KiB stay where they are unless told otherwise, and cost less there.
        rules.append(
            aws.s3.BucketLifecycleConfigurationRuleArgs(
                id="bags-to-a-cheaper-class",
                status="Enabled",
                filter=aws.s3.BucketLifecycleConfigurationRuleFilterArgs(object_size_greater_than=128 * 1024),
                transitions=[
                    aws.s3.BucketLifecycleConfigurationRuleTransitionArgs(
                        days=settings.storage_class_after_days, storage_class=settings.storage_class
                    )
                ],
            )
        )
    return rules

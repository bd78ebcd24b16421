{{- define "anabranch.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "anabranch.labels" -}}
app.kubernetes.io/name: anabranch
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "anabranch.selector" -}}
app.kubernetes.io/name: anabranch
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "anabranch.required" -}}
{{- $v := .Values }}
{{- if and $v.controller.enabled $v.cluster.adminUrl }}{{ fail "cluster.adminUrl and controller.enabled exclude one another: there is one controller" }}{{ end }}
{{- if and $v.controller.enabled (eq $v.cluster.tokenSecret "none") }}{{ fail "cluster.tokenSecret must be a Secret with controller.enabled: others reach it" }}{{ end }}
{{- if not (or $v.controller.enabled $v.cluster.adminUrl) }}{{ fail "cluster.adminUrl is required: the admin URL of Pulsar" }}{{ end }}
{{- if not $v.kafka.bootstrap }}{{ fail "kafka.bootstrap is required: host:port of Kafka" }}{{ end }}
{{- if not $v.lake.path }}{{ fail "lake.path is required: s3://bucket/folder, or /lake with lake.existingClaim" }}{{ end }}
{{- if not $v.cluster.tokenSecret }}{{ fail "cluster.tokenSecret is required: a Secret with the key token, or none" }}{{ end }}
{{- if not (or $v.lake.credentialsSecret $v.lake.existingClaim) }}{{ fail "lake.credentialsSecret or lake.existingClaim is required: how the lake is reached" }}{{ end }}
{{- $operator := eq $v.job.kind "SparkApplication" }}
{{- if and (or $operator $v.spark.master) (not $v.job.stateClaim) }}{{ fail "job.stateClaim is required with spark.master or a SparkApplication: executors write the checkpoint, too" }}{{ end }}
{{- if and $v.spark.master $v.networkPolicy.enabled (not $v.networkPolicy.sparkFrom) }}{{ fail "networkPolicy.sparkFrom is required with spark.master: executors call the job" }}{{ end }}
{{- if and $operator $v.spark.master }}{{ fail "spark.master and job.kind SparkApplication exclude one another: Kubernetes is the operator's cluster" }}{{ end }}
{{- end }}

{{- define "anabranch.adminUrl" -}}
{{- .Values.controller.enabled | ternary (printf "http://%s-controller.%s.svc:8080" (include "anabranch.name" .) .Release.Namespace) .Values.cluster.adminUrl }}
{{- end }}

{{- define "anabranch.controllers" -}}{{ eq .Values.controller.metadata "sqlite" | ternary 1 3 }}{{- end }}

{{- /* URL of a node of our controller, by its pod's name. */ -}}
{{- define "anabranch.nodeUrl" -}}
{{- printf "http://%s.%s-controller-nodes.%s.svc:8080" .pod (include "anabranch.name" .root) .root.Release.Namespace }}
{{- end }}

{{- /* Put the variables ANABRANCH_SECTION__KEY of a tree of settings into a dictionary; later ones win. */ -}}
{{- define "anabranch.flatten" -}}
{{- $prefix := .prefix }}
{{- $into := .into }}
{{- range $key, $value := .tree }}
{{- if and (kindIs "map" $value) (ne $key "namespaces") }}
{{- include "anabranch.flatten" (dict "into" $into "prefix" (printf "%s%s__" $prefix $key) "tree" $value) }}
{{- else }}
{{- $_ := set $into (printf "%s%s" $prefix $key | upper) (kindIs "string" $value | ternary $value ($value | toJson)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "anabranch.settings" -}}
{{- $v := .root.Values }}
{{- $remote := contains "://" $v.lake.path }}
{{- $own := dict
  "metrics" (dict "host" "0.0.0.0")
  "log" (dict "format" "json")
  "lake" (dict "path" $v.lake.path "compact_minutes" ($remote | ternary 2 10))
  "kafka" (dict "security_protocol" $v.kafka.securityProtocol)
  "bundles" (dict "enabled" $v.bundles.enabled)
  "executor" (dict "mode" $v.executor.mode "poll_ms" ($remote | ternary 5000 1000) "lease_seconds" ($remote | ternary 75 20) "metrics_port" 9464 "brakes" (dict "actions_per_minute" $v.executor.actionsPerMinute))
  "stream" (dict "checkpoint" "/var/lib/anabranch/checkpoint" "spark_conf" "/etc/anabranch/spark.conf" "metrics_port" 9464)
  "collect" (dict "folder" "/var/lib/anabranch/collect" "metrics_port" 9464)
  "alerts" (dict "metrics_port" 9464)
  "web" (dict "metrics_port" 9464)
  "local" (dict "folder" "/var/lib/anabranch" "jars" "/opt/anabranch/jars") }}
{{- if $v.policy }}{{ $_ := set $own "policy" (dict "cluster" "/etc/anabranch/policy.toml") }}{{ end }}
{{- if $v.alertRules }}{{ $_ := set (get $own "alerts") "rules" "/etc/anabranch/alerts.yaml" }}{{ end }}
{{- if $v.page.tokensSecret }}{{ $_ := set (get $own "web") "host" "0.0.0.0" }}{{ $_ := set (get $own "web") "tokens_file" "/etc/anabranch-tokens/tokens" }}{{ $service := printf "%s-page" (include "anabranch.name" .root) }}{{ $_ := set (get $own "web") "names" (list $service (printf "%s.%s" $service .root.Release.Namespace) (printf "%s.%s.svc" $service .root.Release.Namespace)) }}{{ end }}
{{- if $v.controller.enabled }}
{{- $service := printf "%s-controller" (include "anabranch.name" .root) }}
{{- $nodes := list }}
{{- range until (include "anabranch.controllers" .root | int) }}
{{- $nodes = append $nodes (include "anabranch.nodeUrl" (dict "root" $.root "pod" (printf "%s-%d" $service .))) }}
{{- end }}
{{- $_ := set $own "controller" (dict "host" "0.0.0.0" "port" 8080 "metrics_port" 9464 "metadata" $v.controller.metadata "database" "/var/lib/anabranch/controller.db" "nodes" $nodes "names" (list $service (printf "%s.%s" $service .root.Release.Namespace)) "segments" ($v.collectors.kafka.enabled | ternary "kafka" "none")) }}
{{- end }}
{{- $variables := dict }}
{{- range list $own $v.settings }}
{{- include "anabranch.flatten" (dict "into" $variables "prefix" "ANABRANCH_" "tree" .) }}
{{- end }}
{{- range $name, $value := $variables }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
- name: ANABRANCH_HOME
  value: /var/lib/anabranch
- name: ANABRANCH_CONTROLLER_URL
  value: {{ include "anabranch.adminUrl" .root | quote }}
{{- if eq .part "controller" }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: ANABRANCH_CONTROLLER_NODE_URL
  value: {{ include "anabranch.nodeUrl" (dict "root" .root "pod" "$(POD_NAME)") | quote }}
{{- with $v.controller.metadataAuthSecret }}
- name: ANABRANCH_CONTROLLER_METADATA_AUTH
  valueFrom: {secretKeyRef: {name: {{ . }}, key: auth}}
{{- end }}
{{- end }}
- name: ANABRANCH_KAFKA_BOOTSTRAP
  value: {{ $v.kafka.bootstrap | quote }}
{{- with $v.kafka.username }}
- name: ANABRANCH_KAFKA_USERNAME
  value: {{ . | quote }}
{{- end }}
{{- with $v.kafka.passwordSecret }}
- name: ANABRANCH_KAFKA_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . }}, key: password}}
{{- end }}
{{- if ne $v.cluster.tokenSecret "none" }}
- name: ANABRANCH_CONTROLLER_TOKEN
  valueFrom: {secretKeyRef: {name: {{ $v.cluster.tokenSecret }}, key: token}}
{{- end }}
{{- end }}

{{- define "anabranch.image" -}}
{{- printf "%s:%s" (.image | default .root.Values.image.repository) (.root.Values.image.tag | default .root.Chart.AppVersion) | quote }}
{{- end }}

{{- define "anabranch.container" -}}
{{- $v := .root.Values }}
image: {{ include "anabranch.image" . }}
imagePullPolicy: {{ $v.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
env:
{{- include "anabranch.settings" . | nindent 2 }}
{{- if and $v.spark.master $v.spark.defaultsSecret (eq .part "job") }}
  - {name: SPARK_CONF_DIR, value: /etc/anabranch-spark}
{{- end }}
{{- with $v.lake.credentialsSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
volumeMounts:
  - {name: files, mountPath: /etc/anabranch, readOnly: true}
  - {name: scratch, mountPath: /tmp}
  - {name: state, mountPath: /var/lib/anabranch}
{{- if and $v.spark.master $v.spark.defaultsSecret (eq .part "job") }}
  - {name: spark, mountPath: /etc/anabranch-spark, readOnly: true}
{{- end }}
{{- if $v.lake.existingClaim }}
  - {name: lake, mountPath: /lake}
{{- end }}
{{- if and $v.page.tokensSecret (eq .part "page") }}
  - {name: tokens, mountPath: /etc/anabranch-tokens, readOnly: true}
{{- end }}
{{- end }}

{{- define "anabranch.rebuild" -}}
{{- $job := .root.Values.job }}
{{- if $job.rebuildLostCheckpoint }}
initContainers:
  - name: rebuild
    {{- include "anabranch.container" . | nindent 4 }}
    # Nothing to do with a checkpoint, or on a lake without rows.
    command: [sh, -ec]
    args:
      - |
        test -f /var/lib/anabranch/checkpoint/metadata && exit 0
        anabranch lake create
        rows=$(anabranch sql --output json "SELECT count(*) AS n FROM batches")
        test "$(echo "$rows" | tr -dc 0-9)" -eq 0 || anabranch lake state rebuild
    resources:
      requests: {cpu: {{ $job.cpus }}, memory: {{ $job.memory }}}
      limits: {memory: {{ $job.memory }}}
{{- end }}
{{- end }}

{{- /* Metrics and probes; the context is the path that says ready. */ -}}
{{- define "anabranch.probes" -}}
ports:
  - {name: metrics, containerPort: 9464}
startupProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 15
  timeoutSeconds: 6
  failureThreshold: 4
readinessProbe:
  httpGet: {path: {{ . }}, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 6
{{- end }}

{{- define "anabranch.pod" -}}
{{- $v := .root.Values }}
serviceAccountName: {{ include "anabranch.name" .root }}
automountServiceAccountToken: {{ .automount | default false }}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with $v.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "anabranch.volumes" -}}
- name: files
  configMap: {name: {{ .files | default (include "anabranch.name" .root) }}}
- name: scratch
  emptyDir: {}
{{- with .claim }}
- name: state
  persistentVolumeClaim: {claimName: {{ . }}}
{{- else }}
{{- if not .volume }}
- name: state
  emptyDir: {}
{{- end }}
{{- end }}
{{- $spark := .root.Values.spark }}
{{- if and $spark.master $spark.defaultsSecret (eq .part "job") }}
- name: spark
  secret: {secretName: {{ $spark.defaultsSecret }}, defaultMode: 0440}
{{- end }}
{{- with .root.Values.lake.existingClaim }}
- name: lake
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- if and .root.Values.page.tokensSecret (eq .part "page") }}
- name: tokens
  secret: {secretName: {{ .root.Values.page.tokensSecret }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- /* conf/spark.conf with what the values say: lines changed, and others added. */ -}}
{{- define "anabranch.sparkConf" -}}
{{- $job := .Values.job }}
{{- $own := dict "spark.master" (printf "local[%v]" $job.cpus) "spark.driver.memory" $job.driverMemory "spark.sql.shuffle.partitions" $job.cpus }}
{{- $operator := eq $job.kind "SparkApplication" }}
{{- with .Values.spark }}
{{- if or .master $operator }}
{{- $cores := mul .executors .executorCores }}
{{- $own = merge (dict "spark.sql.shuffle.partitions" $cores "spark.driver.port" 7078 "spark.blockManager.port" 7079) $own }}
{{- if or .defaultsSecret $operator }}
{{- $own = merge (dict "spark.authenticate" true "spark.network.crypto.enabled" true) $own }}
{{- end }}
{{- end }}
{{- with .master }}
{{- $own = merge (dict
  "spark.master" .
  "spark.cores.max" (mul $.Values.spark.executors $.Values.spark.executorCores)
  "spark.executor.cores" $.Values.spark.executorCores
  "spark.executor.memory" $.Values.spark.executorMemory
  "spark.driver.host" (printf "%s-job-0.%[1]s-job.%s.svc" (include "anabranch.name" $) $.Release.Namespace)
  "spark.driver.bindAddress" "0.0.0.0") $own }}
{{- end }}
{{- end }}
{{- $conf := .Files.Get "files/spark.conf" }}
{{- range $key, $value := $own }}
{{- $line := printf "(?m)^(%s +).*$" (replace "." "\\." $key) }}
{{- if regexMatch $line $conf }}
{{- $conf = regexReplaceAll $line $conf (printf "${1}%v" $value) }}
{{- else }}
{{- $conf = printf "%s%s %v\n" $conf $key $value }}
{{- end }}
{{- end }}
{{- $conf }}
{{- end }}

{{- /* The template of a volume for state, by `storage` and `storageClass`. */ -}}
{{- define "anabranch.claim" -}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {name: state}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .storage }}}}
{{- end }}

{{- define "anabranch.files" -}}
spark.conf: |
{{ include "anabranch.sparkConf" . | indent 2 }}
{{- if eq .Values.job.kind "SparkApplication" }}
spark-pod.sh: |
{{ .Files.Get "files/spark-pod.sh" | indent 2 }}
{{- end }}
{{- with .Values.policy }}
policy.toml: |
{{ . | indent 2 }}
{{- end }}
{{- with .Values.alertRules }}
alerts.yaml: |
{{ . | indent 2 }}
{{- end }}
{{- end }}
